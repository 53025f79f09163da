"""The main job, shown on a real cluster: a fleet moved to FP16 by evidence, broken for real, and rolled back in seconds."""
