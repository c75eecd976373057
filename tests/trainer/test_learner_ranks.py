"""A learner of two rank processes takes the steps of one in this process, and no failure of a rank keeps anyone waiting."""

from __future__ import annotations
