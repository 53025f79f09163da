"""`make operate`: what a person operates by, measured part by part into build/operate.json.

A part is a module with the two functions of ``lab.isolation.part.Part``; ``PARTS`` in ``__main__`` says which key of the
file it measures. A part that is not there yet is left out, and the output says so.
"""
