package dispatch

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"hpcc/files"
	"hpcc/job"
)

// Verify reads the files of all jobs below dir and compares them with their checksums:
// job.json, scripts, task records, attached files and cached answers of sites. It returns the
// number of files read. It does not check the output of tasks. report gets each file that is not what
// hpcc wrote, by its path relative to dir; progress the number of directories that were read, of
// a total.
func Verify(ctx context.Context, dir string, report func(path, reason, cure string),
	progress func(done, total int)) (files int, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, fmt.Errorf("verifying the jobs: %w", err)
	}
	v := &jobVerifier{dir: dir, report: report}
	for i, e := range entries {
		progress(i, len(entries))
		if err := ctx.Err(); err != nil {
			return v.files, err
		}
		switch {
		case !e.IsDir():
		case e.Name() == sitesDir:
			v.checkDir(e.Name(), v.site)
		case e.Name() == job.FilesDir:
			v.checkDir(e.Name(), v.attached)
		default:
			v.job(e.Name())
		}
	}
	return v.files, nil
}

// A jobVerifier finds the damaged files of the jobs below dir.
type jobVerifier struct {
	dir    string
	report func(path, reason, cure string)
	files  int
}

func (v *jobVerifier) addDamage(path string, err error, cure string) {
	v.report(path, "is damaged: "+err.Error(), cure)
}

// checkDir calls check for each file of a directory.
func (v *jobVerifier) checkDir(name string, check func(rel string) error) {
	entries, err := os.ReadDir(filepath.Join(v.dir, name))
	if err != nil {
		v.addDamage(name, err, "make the directory readable")
		return
	}
	for _, e := range entries {
		v.files++
		rel := filepath.Join(name, e.Name())
		if err := check(rel); err != nil {
			v.addDamage(rel, err, "remove the file; the next job or the next answer of the site writes it again")
		}
	}
}

// site checks a cached answer of a site.
func (v *jobVerifier) site(rel string) error {
	b, err := os.ReadFile(filepath.Join(v.dir, rel))
	if err == nil {
		_, err = files.CheckText(b)
	}
	if errors.Is(err, files.ErrNoSum) && json.Valid(bytes.SplitAfter(b, []byte("\n"))[0]) { // an older hpcc wrote it
		return nil
	}
	return err
}

// attached checks a file whose name starts with its digest; see [job.KeepFile].
func (v *jobVerifier) attached(rel string) error {
	b, err := os.ReadFile(filepath.Join(v.dir, rel))
	if err != nil {
		return err
	}
	sum := sha256.Sum256(b)
	if want, _, _ := strings.Cut(filepath.Base(rel), "-"); want != hex.EncodeToString(sum[:8]) {
		return errors.New("its digest does not match its name")
	}
	return nil
}

// job checks the files of one job.
func (v *jobVerifier) job(id string) {
	home := filepath.Join(v.dir, id)
	s, err := ReadJob(home)
	switch {
	case err == nil:
		v.files++
		for name, want := range s.Scripts {
			v.script(filepath.Join(id, name), want)
		}
	case !errors.Is(err, fs.ErrNotExist):
		v.addDamage(filepath.Join(id, "job.json"), err, "restore it from a backup, or remove the directory of the job")
	}
	var r job.Records
	if err := r.Read(home, true); err != nil {
		v.addDamage(id, err, "make the directory readable")
	}
	v.files += len(r.Last) + len(r.Earlier) + len(r.Bad)
	for _, err := range r.Bad {
		file := id
		var at *job.RecordError
		if errors.As(err, &at) {
			file = filepath.Join(id, filepath.Base(at.File))
		}
		v.addDamage(file, err, "hpcc rerun "+id+" runs the task again; or remove the file")
	}
}

func (v *jobVerifier) script(rel, want string) {
	v.files++
	b, err := os.ReadFile(filepath.Join(v.dir, rel))
	if err == nil {
		if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != want {
			err = errors.New("its digest does not match job.json")
		}
	}
	if err != nil {
		v.addDamage(rel, err, "nothing to do: the scheduler has its own copy, and a rerun writes another one")
	}
}
