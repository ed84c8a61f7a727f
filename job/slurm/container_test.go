package slurm

import "testing"

func TestContainerImage(t *testing.T) {
	for name, want := range map[string]string{
		"ubuntu:24.04": "ubuntu:24.04", "lab/sci": "lab/sci", "docker.io/library/ubuntu": "docker.io/library/ubuntu",
		"nvcr.io#nvidia/pytorch:24.07-py3": "nvcr.io/nvidia/pytorch:24.07-py3", "docker://u@registry.example.org:5000#a/b": "registry.example.org:5000/a/b",
		"localhost#x": "localhost/x", "/images/a.sqsh": "/images/a.sqsh",
	} {
		if got, err := containerImage(name); got != want || err != nil {
			t.Errorf("containerImage(%q) = %q, %v; want %q", name, got, err, want)
		}
	}
	for _, wrong := range []string{"", "#", "a#", "docker://", "docker://#x", "http://x", "Upper/Case", "x y", "a#b#c", "host!#x", "x:" + string(rune(0)), "../x$HOME"} {
		if got, err := containerImage(wrong); err == nil {
			t.Errorf("containerImage(%q) = %q; want an error", wrong, got)
		}
	}
}

// FuzzContainer reads images and mounts of hostile scripts.
func FuzzContainer(f *testing.F) {
	for _, s := range []string{"docker://u@nvcr.io#a/b:1", "/x.sqsh", "/a:/b:ro+rbind,tmpfs:/c", "umount:/x", ":", ",", "::", "./a"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if image, err := containerImage(s); err == nil && image == "" {
			t.Errorf("containerImage(%q) is empty", s)
		}
		if flags, err := containerMounts(s); err == nil && len(flags) == 0 {
			t.Errorf("containerMounts(%q) has no flags", s)
		}
	})
}
