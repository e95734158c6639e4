"""Tests of the rendezvous directory, addresses and clean-up."""
