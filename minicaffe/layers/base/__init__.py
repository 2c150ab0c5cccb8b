"""What layer types share: base classes, checks, nets inside layers. No type is registered here."""
