//go:build !entry

package main

// embeddedEntry is empty if hpcc is built without the tag "entry", which make sets.
const embeddedEntry = ""
