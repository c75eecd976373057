"""The catalogue on disk: built once from millions of products, mapped by every process that plays in it."""

from envs.webshop.disk.build import Progress, build_index
from envs.webshop.disk.catalogue import DiskCatalogue, is_index, open_index
from envs.webshop.disk.format import CatalogueError

__all__ = ["CatalogueError", "DiskCatalogue", "Progress", "build_index", "is_index", "open_index"]
