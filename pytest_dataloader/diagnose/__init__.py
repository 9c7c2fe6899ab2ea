"""Diagnosis: reads objects and machines to say why."""
