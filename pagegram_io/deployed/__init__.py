"""Tables of models in the wild: how they hash, and where their rows lie in real checkpoints."""
