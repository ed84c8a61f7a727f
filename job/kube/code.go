package kube

import (
	"archive/tar"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"

	"hpcc/job"
)

// A config map holds the files of "hpcc submit --with-code". Each is mounted alone, so that the
// other files of the directory in the image stay.

// codeVolume is the name of the volume with the files.
const codeVolume = "code"

// A configMap is a ConfigMap (core/v1).
type configMap struct {
	Object
	Immutable  bool              `json:"immutable"`
	BinaryData map[string]string `json:"binaryData"`
}

type configMapSource struct {
	Name  string          `json:"name"`
	Items []configMapItem `json:"items"`
}

type configMapItem struct {
	Key  string `json:"key"`
	Path string `json:"path"`
	Mode int64  `json:"mode"`
}

// codeName returns the name of the config map of a Job.
func codeName(name string) string { return name + "-code" }

// codeKey returns the key of file n in the config map: paths are not valid keys.
func codeKey(n int) string { return "file-" + strconv.Itoa(n) }

// newConfigMap returns the config map with the files of the job.
func newConfigMap(j *job.Job, name string) (*configMap, error) {
	f, err := os.Open(j.Pod.CodeFile)
	if err != nil {
		return nil, fmt.Errorf("reading the files of --with-code: %w", err)
	}
	defer f.Close()
	keys := map[string]string{}
	for n, file := range slices.Sorted(maps.Keys(j.Pod.CodeFiles)) {
		keys[file] = codeKey(n)
	}
	m := &configMap{Object{"v1", "ConfigMap", Meta{Name: codeName(name), Labels: Labels(j, name)}}, true, map[string]string{}}
	for t := tar.NewReader(io.LimitReader(f, MaxManifest)); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("reading the files of --with-code in %s: %w", j.Pod.CodeFile, err)
		}
		key := keys[h.Name]
		if h.Typeflag != tar.TypeReg || key == "" {
			continue
		}
		b, err := io.ReadAll(t)
		if err != nil {
			return nil, fmt.Errorf("reading %s in %s: %w", h.Name, j.Pod.CodeFile, err)
		}
		m.BinaryData[key] = base64.StdEncoding.EncodeToString(b)
	}
	if len(m.BinaryData) != len(keys) {
		return nil, fmt.Errorf("%s has %d of the %d files of --with-code; submit the job again",
			j.Pod.CodeFile, len(m.BinaryData), len(keys))
	}
	return m, nil
}

// mountCode mounts the files of the config map of a Job.
func mountCode(j *job.Job, s *PodSpec, name string) {
	c := &s.Containers[0]
	if j.Pod.CodeEmpty {
		s.Volumes = append(s.Volumes, Volume{Name: codeVolume + "-dir", EmptyDir: &emptyDir{}})
		c.VolumeMounts = append(c.VolumeMounts, volumeMount{Name: codeVolume + "-dir", MountPath: j.Pod.Dir})
	}
	source := &configMapSource{Name: codeName(name)}
	for n, file := range slices.Sorted(maps.Keys(j.Pod.CodeFiles)) {
		key := codeKey(n)
		source.Items = append(source.Items, configMapItem{key, key, j.Pod.CodeFiles[file]})
		c.VolumeMounts = append(c.VolumeMounts, volumeMount{Name: codeVolume, MountPath: path.Join(j.Pod.Dir, file),
			SubPath: key, ReadOnly: true})
	}
	s.Volumes = append(s.Volumes, Volume{Name: codeVolume, ConfigMap: source})
}
