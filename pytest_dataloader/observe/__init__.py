"""Observation: runs pipelines and writes down facts; judges nothing."""
