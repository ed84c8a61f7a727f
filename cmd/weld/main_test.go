package main

import (
	"bytes"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// build compiles a program that prints word, with the linker's flags.
func build(t *testing.T, word, flags string) string {
	t.Helper()
	dir := t.TempDir()
	source := "package main\nvar slot = [24]byte{'h', 'h', 'p', 'c', 'c', '-', 'w', 'e', 'e', 'l', 'd', '-', 'l', 'e', 'a', 'n'}\nvar big [1 << 20]byte\nfunc main() { big[1]++; println(\"" + word + "\", slot[17] != 0) }\n"
	for name, text := range map[string]string{"main.go": source, "go.mod": "module x\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("go", "build", "-ldflags", flags, "-o", "x", ".")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return filepath.Join(dir, "x")
}

// The welded file is the first program, knows where the second begins, and the
// kernel starts the second when that is its entry point; strip leaves both.
func TestWeld(t *testing.T) {
	first, second := build(t, "first", "-s -w"), build(t, "second", "-s -w -T 0x20001000")
	both := filepath.Join(t.TempDir(), "both")
	if err := weld(first, second, both); err != nil {
		t.Fatal(err)
	}
	files := []string{both}
	if strip, err := exec.LookPath("strip"); err == nil {
		files = append(files, both+".stripped")
		if out, err := exec.Command(strip, "-o", files[1], both).CombinedOutput(); err != nil {
			t.Fatalf("strip: %v: %s", err, out)
		}
	}
	l, err := elf.Open(second)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"first true\n", "second false\n"} {
			if out, err := exec.Command(file).CombinedOutput(); err != nil || string(out) != want {
				t.Errorf("%s says %q, %v; want %q", filepath.Base(file), out, err, want)
			}
			const entryAt = 24
			copy(b[entryAt:], []byte{byte(l.Entry), byte(l.Entry >> 8), byte(l.Entry >> 16), byte(l.Entry >> 24), 0, 0, 0, 0})
			file += ".second"
			if err := os.WriteFile(file, b, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestWeldRefuses(t *testing.T) {
	first, second := build(t, "first", "-s -w"), build(t, "second", "-s -w -T 0x20001000")
	read := func(file string) []byte {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	f, s := read(first), read(second)
	for _, c := range []struct {
		name         string
		first, added []byte
		want         string
	}{
		{"the same addresses", f, f, "link it with -ldflags -T"},
		{"no place", bytes.ReplaceAll(f, slot, make([]byte, len(slot))), s, "no single place"},
		{"two places", append(bytes.Clone(f), slot...), s, "no single place"},
		{"no program", bytes.Repeat([]byte("#!/bin/sh\n"), 20), s, "bad magic"},
		{"empty", f, nil, "EOF"},
	} {
		if _, err := join(c.first, c.added); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", c.name, err, c.want)
		}
	}
}
