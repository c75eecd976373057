"""The configuration of a run: what may be said (schema, algorithm), how a file is read (load), published recipes."""

from trainer.config.schema import *  # noqa: F403 - the models of the sections, as named there
from trainer.config.schema import __all__ as __all__
