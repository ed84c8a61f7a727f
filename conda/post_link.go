package conda

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"hpcc/conda/program"
	"hpcc/text"
)

// postLinkDriver runs the post-link scripts in sequence as conda does (CEP 34): with the
// package's variables, in the activated environment, by bash if it exists. Its arguments
// are the name, version and build number of each package. Scripts write messages for the
// user to .messages.txt.
const postLinkDriver = `shell=sh
if command -v bash >/dev/null 2>&1; then shell=bash; fi
while [ $# -gt 0 ]; do
	export PKG_NAME="$1" PKG_VERSION="$2" PKG_BUILDNUM="$3"
	shift 3
	script="bin/.$PKG_NAME-post-link.sh"
	echo "$script of $PKG_NAME $PKG_VERSION"
	"$shell" "$PREFIX/$script"
	status=$?
	if [ -f "$PREFIX/.messages.txt" ]; then
		cat "$PREFIX/.messages.txt"
		rm -f "$PREFIX/.messages.txt"
	fi
	if [ "$status" -ne 0 ]; then
		echo "` + postLinkFailed + `$script of $PKG_NAME $PKG_VERSION ended with status $status"
		exit "$status"
	fi
done`

// postLinkFailed starts the driver's last line about a failed script.
const postLinkFailed = "hpcc: "

// postLink runs the post-link scripts of all packages, dependencies first. It returns the
// layer of their changes, or nil. If nothing can run, it notes the scripts instead.
func (in *installer) postLink(ctx context.Context, o Options, below []v1.Layer) (v1.Layer, error) {
	var args, scripts []string
	for _, p := range in.packages {
		if s := p.linkScript("pre"); in.isScript(s) {
			in.note("%s of %s is not run: pre-link scripts need the unpacked package, and conda has deprecated them", s, p.rec.Name)
		}
		if s := p.linkScript("post"); in.isScript(s) {
			args = append(args, p.rec.Name, p.rec.Version, strconv.Itoa(p.meta.index.BuildNumber))
			scripts = append(scripts, fmt.Sprintf("%s of %s", s, p.rec.Name))
		}
	}
	why := o.NoStep
	if o.Step != nil && len(scripts) > 0 {
		l, err := o.Step(ctx, program.Step{
			Text: fmt.Sprintf("run post-link scripts of %d packages", len(scripts)), Below: below,
			Args: program.Activated(append([]string{"/bin/sh", "-c", postLinkDriver, "hpcc"}, args...)...),
			Env:  append(append([]string{"PREFIX=" + in.plan.Prefix, "ROOT_PREFIX=" + in.plan.Prefix}, in.env.Env...), program.Env...),
			Path: in.env.Path, Dir: in.plan.Prefix + "/bin",
		})
		if !errors.Is(err, program.ErrCannotRun) {
			return l, postLinkError(err)
		}
		why = err.Error()
	}
	if why == "" {
		why = "its changes to the image could not be verified"
	}
	for _, s := range scripts {
		in.note("%s is not run: %s", s, why)
	}
	return nil, nil
}

// linkScript returns the path of a link script of the package, below the prefix.
func (p *pkg) linkScript(when string) string { return "bin/." + p.rec.Name + "-" + when + "-link.sh" }

func (in *installer) isScript(path string) bool {
	k := in.kinds[path]
	return k == regularFile || k == symbolicLink
}

// postLinkError names the script that failed.
func postLinkError(err error) error {
	if err == nil {
		return nil
	}
	var failed *program.Error
	if errors.As(err, &failed) {
		log := bytes.TrimRight(failed.Log, "\n")
		if what, ok := strings.CutPrefix(string(log[bytes.LastIndexByte(log, '\n')+1:]), postLinkFailed); ok {
			if program.Offline().Match(log) {
				return &program.Error{Err: fmt.Errorf("%s: the script needs the network; skip it with --no-run and use RUN in a Dockerfile", text.Short(what)), Log: failed.Log}
			}
			return &program.Error{Err: fmt.Errorf("%s; skip such scripts with --no-run", text.Short(what)), Log: failed.Log}
		}
	}
	return fmt.Errorf("running the post-link scripts: %w", err)
}
