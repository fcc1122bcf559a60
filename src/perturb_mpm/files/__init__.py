"""Files in and out: written whole or not at all, and never unpickled."""
