"""The command line: a file a command. Bad input is one clear line and exit code 2.

Nothing is imported here, so that a bad command fails before torch is loaded.
"""
