"""Small training scripts, each run without and with the trainer's class: training with it must be training without it.

A script is written once. It calls ``start(model, optimizer, setting)`` where its own loop would be, and gets a
:class:`script.Loop`: plain PyTorch, or ours. The models and loops have the shape of well-known public scripts, written anew.
"""
