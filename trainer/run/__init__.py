"""A run from its first step to its summary: loop, update, checkpoint, folder, report, evaluation."""
