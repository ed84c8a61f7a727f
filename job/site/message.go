package site

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"hpcc/files"
	"hpcc/job"
	"hpcc/store"
	"hpcc/text"
)

// A Message is a job for hpcc on another machine.
type Message struct {
	Protocol int        `json:"protocol"`
	Version  string     `json:"version"`
	Target   job.Target `json:"target"`
	Job      *job.Job   `json:"job"`
	Files    []jobFile  `json:"files,omitempty"`         // files that the arguments of the job name
	Follows  bool       `json:"image_follows,omitempty"` // in a dry run: the sender has the image, and would send it
}

// A jobFile is a file on this machine that a job needs.
type jobFile struct {
	Name string `json:"name"` // absolute path, as in the job
	Data []byte `json:"data"`
}

// Limits in bytes: a file of a job, and the JSON of a job with all its files.
const (
	maxFile    = 16 << 20
	maxMessage = 256 << 20
)

// envFile returns the file of an argument of "hpcc run": --set-env=FILE or --set-env0=FILE.
func envFile(arg string) (flag, file string, ok bool) {
	flag, file, ok = strings.Cut(arg, "=")
	return flag, file, ok && (flag == "--set-env" || flag == "--set-env0")
}

// encode encodes a job for hpcc at the site, with the files on this machine that it names.
func (r *Remote) encode(m *Message) (*bytes.Buffer, error) {
	m.Protocol, m.Version, m.Files = protocol, r.Own, nil
	var names []string
	for _, arg := range m.Job.Run {
		if _, file, ok := envFile(arg); ok && !strings.Contains(file, "=") {
			names = append(names, file)
		}
	}
	if m.Job.Params.File != "" {
		names = append(names, m.Job.Params.File)
	}
	for _, name := range names {
		if strings.ContainsAny(name, "{}") {
			return nil, text.Usagef("%s: files that are named after the task are not sent to site %s", name, r.Site.Name).
				Hint("copy them to the site and let the program read them")
		}
		b, err := readFile(name)
		if err != nil {
			return nil, fmt.Errorf("reading a file for site %s: %w", r.Site.Name, err)
		}
		if len(b) == maxFile {
			return nil, fmt.Errorf("%s: larger than %s, the limit for files that are sent with a job", name, text.Size(maxFile))
		}
		m.Files = append(m.Files, jobFile{name, b})
	}
	var b bytes.Buffer
	return &b, json.NewEncoder(&b).Encode(m)
}

// readFile reads at most the first maxFile bytes of a file.
func readFile(name string) ([]byte, error) {
	f, err := files.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFile))
}

// Receive reads a job as hpcc on another machine sent it. version is that of this hpcc.
func Receive(r io.Reader, version string) (*Message, error) {
	d := json.NewDecoder(io.LimitReader(r, maxMessage))
	d.DisallowUnknownFields()
	var m Message
	err := d.Decode(&m)
	if err == nil && (m.Protocol != protocol || m.Job == nil) {
		err = fmt.Errorf("protocol version %d, not %d", m.Protocol, protocol)
	}
	if err != nil {
		return nil, fmt.Errorf("reading a job from hpcc %s on another machine (this is %s): %w", m.Version, version, err)
	}
	return &m, nil
}

// CheckImage returns an error if the image of the job is not the one with the digest that the sender saw.
func (m *Message) CheckImage(s *store.Store, digest string) error {
	if digest != "" && digestOf(s, m.Job.ExactImage(), nil) != digest {
		return fmt.Errorf("the name %s refers to another image at this site since the job was sent; submit the job again", m.Job.Image)
	}
	return nil
}

// KeepFiles writes the files of the job below the directory of all jobs, and lets the job name those.
func (m *Message) KeepFiles(jobs string) error {
	for _, f := range m.Files {
		file, err := job.KeepFile(jobs, filepath.Base(f.Name), f.Data)
		if err != nil {
			return err
		}
		for i, arg := range m.Job.Run {
			if flag, name, ok := envFile(arg); ok && name == f.Name {
				m.Job.Run[i] = flag + "=" + file
			}
		}
		if m.Job.Params.File == f.Name {
			m.Job.Params.File = file
		}
	}
	return m.Job.Params.Reopen()
}
