"""Layer types, a module each: those that compute here, data/ and ssd/ beside them, what they share in base/."""
