"""Files, memory and time limits, executors, wording of messages. Imports nothing of the project."""
