"""What layer types share: base classes, checks. No type is registered here."""
