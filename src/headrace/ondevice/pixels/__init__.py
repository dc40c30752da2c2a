"""Pictures as bytes and numbers drawn for them: what workers bring where the device does the pixels."""
