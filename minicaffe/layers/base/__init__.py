"""Base classes and checks that layer types share. No type is registered here."""
