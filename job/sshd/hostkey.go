package sshd

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/crypto/ssh"
)

// UserKey returns the user's host key; see [HostKey].
func UserKey() ([]byte, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return nil, fmt.Errorf("finding the directory of the host key: %w", err)
	}
	return HostKey(filepath.Join(dir, "hpcc", "ssh_host_ed25519_key"))
}

// maxKey is the maximum size of a host key, in bytes.
const maxKey = 64 << 10

// SendKey sends a host key to the server that calls [ReceiveKey].
func SendKey(w io.Writer, key []byte) error {
	_, err := w.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(key))), key...))
	return err
}

// ReceiveKey reads the host key that [SendKey] sent.
func ReceiveKey(r io.Reader) ([]byte, error) {
	var n uint32
	err := binary.Read(r, binary.BigEndian, &n)
	if err == nil && n > maxKey {
		err = fmt.Errorf("%d bytes", n)
	}
	key := make([]byte, min(n, maxKey))
	if err == nil {
		_, err = io.ReadFull(r, key)
	}
	if err != nil {
		return nil, fmt.Errorf("receiving the host key: %w", err)
	}
	return key, nil
}

// HostKey returns the private key in a file, in OpenSSH's format. It creates a missing file, which
// only the user can read. All of the user's tasks have this key, so that ssh knows it after the first
// connection.
func HostKey(file string) ([]byte, error) {
	key, err := readKey(file)
	if !errors.Is(err, fs.ErrNotExist) {
		return key, err
	}
	if err := createKey(file); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("creating the host key: %w", err)
	}
	return readKey(file)
}

// readKey reads a private key, and refuses one that other users may know.
func readKey(file string) ([]byte, error) {
	f, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0) // it may be a pipe
	if err != nil {
		return nil, fmt.Errorf("reading the host key: %w", err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("reading the host key: %w", err)
	}
	st, ok := fi.Sys().(*syscall.Stat_t)
	if fi.Mode().Perm()&0o077 != 0 || !ok || int(st.Uid) != os.Geteuid() || !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("host key %s: other users may read it; remove it, and the next connection creates another one", file)
	}
	b := make([]byte, fi.Size())
	if _, err = f.ReadAt(b, 0); err == nil {
		_, err = ssh.ParsePrivateKey(b)
	}
	if err != nil {
		return nil, fmt.Errorf("host key %s: %w; remove it, and the next connection creates another one", file, err)
	}
	return b, nil
}

// createKey writes a new key. It fails if the file exists, because another process has created it.
func createKey(file string) error {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	block, err := ssh.MarshalPrivateKey(private, "hpcc")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(file), ".ssh_host_") // mode 0600
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if _, err := f.Write(pem.EncodeToMemory(block)); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return os.Link(f.Name(), file)
}
