package translate

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"

	"hpcc/files"
	"hpcc/job"
	"hpcc/text"
)

// maxFile is the maximum size of a script or manifest, in bytes.
const maxFile = 16 << 20

// Open reads the script, manifest or submit command name; - is standard input. The job starts in dir or in home,
// which default to the current directory and the user's home directory. The error has a hint.
func (ds Translator) Open(name string, dialect job.Target, dir, home string) (Source, error) {
	s := Source{Name: name, Dialect: dialect, Home: home}
	var err error
	if s.Dir, err = filepath.Abs(dir); err != nil {
		return s, err
	}
	if home == "" {
		if s.Home, err = os.UserHomeDir(); err != nil {
			return s, fmt.Errorf("finding the home directory, where some schedulers start jobs: %w", err)
		}
	}
	if u, err := user.Current(); err == nil {
		s.User = u.Username
	}
	s.Open = func(name string) ([]byte, error) { return files.ReadFile(name, maxFile) }
	switch _, serr := os.Stat(name); {
	case name == "-":
		s.Name = "stdin"
		s.Text, err = files.ReadAll(files.Stdin(), maxFile)
	case serr != nil && ds.IsSubmitCommand(name):
		s.Name, s.Command = "job", name
	default:
		s.Text, err = s.Open(name)
	}
	if err != nil {
		return s, text.Hint(fmt.Errorf("--from: %w", err),
			"name a job script, - for standard input, or a submit command: --from 'sbatch -n 4 job.sh'")
	}
	return s, nil
}
