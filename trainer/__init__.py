"""The trainer: drives environments of the hub with an inference engine and learns from the episodes."""
