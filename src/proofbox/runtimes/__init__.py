"""What isolates, one folder a runtime. None knows another; they are reached through ``proofbox.runtime.registry``."""
