"""``python -m roll_envs`` is the command ``roll-envs``."""

from roll_envs.cli import main

raise SystemExit(main())
