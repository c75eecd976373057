"""Types of a training step: token sequences, batches of tensors, and metrics."""
