"""What tests have in common: services, servers in processes, liars, victims, and what is looked at afterwards."""
