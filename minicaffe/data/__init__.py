"""Databases (`db`), records (`datum`), pixels (`transform`), batches (`prefetch`); making databases (`datasets`)."""
