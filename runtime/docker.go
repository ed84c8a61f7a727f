package runtime

import (
	"os"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"hpcc/runtime/accounts"
)

// makeCwdMark is the annotation of a Spec whose working directory is created if it is missing.
const makeCwdMark = "hpcc.makecwd"

// likeDocker completes the options of a run with [Options.Docker] and sets the user of the image's
// configuration. root is the image's directory.
func (o *Options) likeDocker(root string, c *ImageConfig) error {
	if o.User != "" {
		c.User = o.User
	}
	uid, gid, err := accounts.IDs(root, c.User)
	o.UID, o.GID = &uid, &gid
	o.FakeRoot = uid == 0
	o.NoPasswd, o.NoHome = true, true
	return err
}

// dockerEnvironment returns the variables of a program that docker starts: none of the caller, and
// the image's on top of the usual ones.
func dockerEnvironment(c ImageConfig, root, hostname string) []string {
	if hostname == "" {
		hostname, _ = os.Hostname()
	}
	env := []string{"PATH=" + StandardPath, "HOSTNAME=" + hostname, "HOME=" + accounts.ImageHome(root, c.User)}
	for _, kv := range c.Env {
		if kv != "" && kv[0] != '=' {
			env = setVariable(env, kv)
		}
	}
	return setVariable(env, "HPCC_RUNNING=1")
}

// makeCwd creates the working directory if the Spec asks for it, also in a mount of the user, as
// Docker does. If it cannot, the program does not start there, which is reported later.
func makeCwd(s *specs.Spec) {
	if s.Annotations[makeCwdMark] != "" {
		_ = os.MkdirAll(s.Process.Cwd, 0o755)
	}
}
