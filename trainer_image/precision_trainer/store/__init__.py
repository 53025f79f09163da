"""The directory of checkpoints: who may write it, what is kept, and which one training goes on from."""
