"""One training job from start to exit: options, start decision, loop, signals."""
