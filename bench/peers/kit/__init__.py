"""What every peer's app imports; the folder is on the path of their processes."""
