"""Tests mirror the house."""
