"""``python -m sandboxes.docker``: make the image of this machine's Python."""

from __future__ import annotations

import argparse
import sys

from roll_envs.errors import RollError
from roll_envs.sandbox import LANGUAGES
from sandboxes.docker.engine import HOST_IMAGE
from sandboxes.docker.image import build_host_image


def main() -> int:
    """Exit code 0 once the image is there."""
    parser = argparse.ArgumentParser(prog="python -m sandboxes.docker", description=__doc__)
    parser.add_argument("--tag", default=HOST_IMAGE, help="name of the image (default: %(default)s)")
    parser.add_argument("--languages", nargs="+", default=["python", "bash"], choices=LANGUAGES)
    parser.add_argument("--engine", help="URL of the engine, as in DOCKER_HOST")
    options = parser.parse_args()
    try:
        image = build_host_image(tag=options.tag, languages=options.languages, engine=options.engine)
    except RollError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{options.tag}  {image}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
