"""Playing the episodes of a training step."""
