"""Add-ons that come with minicaffe. The core names none of them: they register by entry points (pyproject.toml).

Each is a folder, which imports the core and no other add-on; export alone may name types of others. Its ``__init__.py`` says what
it adds, and imports nothing of it.
"""
