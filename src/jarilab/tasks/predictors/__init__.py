"""What the answers of each kind of task are to everybody outside training: one kind of answer a file."""
