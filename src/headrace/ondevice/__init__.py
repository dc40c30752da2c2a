"""Pictures decoded and transformed on the device: workers bring bytes, the device makes pixels."""
