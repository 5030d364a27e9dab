"""The command line, one file per command. Bad input gives one line and exit code 2.

This file imports nothing, so that a bad command fails before torch is loaded.
"""
