"""Language models with an n-gram table: training, checkpoints, held-out loss. Everything that imports torch is here.

``presets.py`` alone does not, so that the command line can name sizes without it.
"""
