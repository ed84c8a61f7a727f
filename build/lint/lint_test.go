package lint_test

import (
	"context"
	"fmt"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"hpcc/build"
	"hpcc/store"
	"hpcc/testdata/helpers/testenv"
)

// checked checks a Dockerfile's text and returns its warnings as LINE RULE.
func checked(t *testing.T, s *store.Store, text string, o build.Options) (found []string, reported string, err error) {
	t.Helper()
	if o.Context == "" {
		o.Context = t.TempDir()
	}
	o.Dockerfile, o.Stdin = "-", strings.NewReader(text)
	o.Progress = func(e build.Event) {
		found = append(found, fmt.Sprint(e.Line, " ", e.Rule))
		reported += e.Warning + "\n"
	}
	n, _, err := build.Check(context.Background(), s, o)
	if n != len(found) {
		t.Errorf("Check counts %d warnings and reports %d", n, len(found))
	}
	return found, reported, err
}

// lintCases has good and bad examples that correspond to BuildKit's documentation of its rules.
// The expected warnings are those of BuildKit's own tests.
var lintCases = []struct {
	name, text string
	ignore     string // .dockerignore
	args       map[string]string
	target     string
	want       string // LINE RULE, separated by commas
	warns      string // part of the first warning
	fails      string // part of the error after the warnings; "": none
}{
	{name: "nothing to say", text: "FROM scratch AS base\nCOPY . /\nCMD [\"/x\"]\n"},

	{name: "StageNameCasing", text: "FROM base AS BuilderBase\n", want: "1 StageNameCasing", warns: "Stage name 'BuilderBase' should be lowercase"},
	{name: "StageNameCasing good", text: "FROM base AS builder-base\n"},

	{name: "FromAsCasing", text: "FROM base as builder\n", want: "1 FromAsCasing", warns: "'as' and 'FROM' keywords' casing do not match"},
	{name: "FromAsCasing lower", text: "from base AS builder\n", want: "1 FromAsCasing"},
	{name: "FromAsCasing good", text: "from base as deb-builder\n"},
	{name: "FromAsCasing of a mixed FROM", text: "From base as a\nFROM base AS b\n", want: "1 ConsistentInstructionCasing"},

	{name: "NoEmptyContinuation", text: "FROM base\nEXPOSE \\\n\n80\n", want: "4 NoEmptyContinuation", warns: "Empty continuation line"},
	{name: "NoEmptyContinuation good", text: "FROM base\nEXPOSE \\\n# Port\n80\n"},

	{name: "ConsistentInstructionCasing", text: "From base\nRun echo hello > /greeting.txt\nEntRYpOiNT [\"cat\", \"/greeting.txt\"]\n",
		want: "1 ConsistentInstructionCasing,2 ConsistentInstructionCasing,3 ConsistentInstructionCasing", warns: "Command 'From' should match the case of the command majority (uppercase)"},
	{name: "ConsistentInstructionCasing by majority", text: "FROM base\ncopy a /a\ncopy b /b\n", want: "1 ConsistentInstructionCasing", warns: "(lowercase)"},
	{name: "ConsistentInstructionCasing good", text: "from base\nrun echo hello > /greeting.txt\nentrypoint [\"cat\", \"/greeting.txt\"]\n"},

	{name: "DuplicateStageName", text: "FROM base AS builder\nFROM scratch AS builder\n", want: "2 DuplicateStageName", warns: `Duplicate stage name "builder", stage names should be unique`},
	{name: "DuplicateStageName good", text: "FROM base AS a\nFROM scratch AS b\nFROM a\nFROM b\n"},

	{name: "ReservedStageName", text: "FROM base AS scratch\nFROM base AS context\n", want: "1 ReservedStageName,2 ReservedStageName", warns: `reserved stage "scratch"`},
	{name: "ReservedStageName good", text: "FROM base AS builder\n"},

	{name: "JSONArgsRecommended", text: "FROM base\nENTRYPOINT my-program start\n", want: "2 JSONArgsRecommended", warns: "JSON arguments recommended for ENTRYPOINT"},
	{name: "JSONArgsRecommended CMD", text: "FROM scratch\nCMD my-program start\n", want: "2 JSONArgsRecommended"},
	{name: "JSONArgsRecommended good", text: "FROM base\nENTRYPOINT [\"my-program\", \"start\"]\n"},
	{name: "JSONArgsRecommended with SHELL", text: "FROM base\nSHELL [\"/bin/bash\", \"-c\"]\nENTRYPOINT echo \"hello world\"\n"},
	{name: "JSONArgsRecommended with SHELL before", text: "FROM scratch AS a\nSHELL [\"/x\"]\nFROM a\nCMD mycommand\n"},
	{name: "JSONArgsRecommended with the base's SHELL", text: "FROM shelled\nCMD mycommand\n"},

	{name: "MaintainerDeprecated", text: "FROM scratch\nMAINTAINER moby@example.com\n", want: "2 MaintainerDeprecated", warns: "Maintainer instruction is deprecated"},
	{name: "MaintainerDeprecated good", text: "FROM scratch\nLABEL org.opencontainers.image.authors=\"moby@example.com\"\n"},

	{name: "UndefinedArgInFrom", text: "FROM node:22${VARIANT} AS jsbuilder\n", want: "1 UndefinedArgInFrom", warns: "FROM argument 'VARIANT' is not declared"},
	{name: "UndefinedArgInFrom good", text: "ARG VARIANT=\"-alpine3.20\"\nFROM node:22${VARIANT} AS jsbuilder\n"},
	{name: "UndefinedArgInFrom without value", text: "ARG DEBUG\nFROM base${DEBUG}\n"},
	{name: "UndefinedArgInFrom misspelt", text: "ARG MY_ARCH=amd64\nFROM --platform=linux/${MYARCH} base\n", want: "2 UndefinedArgInFrom", warns: "(did you mean MY_ARCH?)", fails: "--platform="},
	{name: "UndefinedArgInFrom built in", text: "FROM --platform=$BULIDPLATFORM base\n", want: "1 UndefinedArgInFrom", warns: "(did you mean BUILDPLATFORM?)", fails: "--platform="},

	{name: "WorkdirRelativePath", text: "FROM base AS web\nWORKDIR usr/share/nginx/html\nCOPY public .\n", want: "2 WorkdirRelativePath", warns: `Relative workdir "usr/share/nginx/html"`},
	{name: "WorkdirRelativePath good", text: "FROM base AS web\nWORKDIR /usr/share/nginx/html\nCOPY public .\n"},
	{name: "WorkdirRelativePath after an absolute one", text: "FROM scratch AS a\nWORKDIR /app\nFROM a AS b\nWORKDIR subdir/\n"},
	{name: "WorkdirRelativePath of a variable", text: "FROM scratch\nARG D=/app\nWORKDIR $D\n"},

	{name: "UndefinedVar", text: "FROM base AS x\nCOPY $foo .\n", want: "2 UndefinedVar", warns: "Usage of undefined variable '$foo'"},
	{name: "UndefinedVar good", text: "FROM base AS x\nARG foo\nCOPY $foo .\n"},
	{name: "UndefinedVar in ARG", text: "FROM base AS x\nARG VERSION=$foo\n", want: "2 UndefinedVar"},
	{name: "UndefinedVar in an ARG that is given", text: "FROM base AS x\nARG VERSION=$foo\n", args: map[string]string{"VERSION": "1"}},
	{name: "UndefinedVar of the base", text: "FROM base AS x\nARG VERSION=$PYTHON_VERSION\n"},
	{name: "UndefinedVar of a trigger", text: "FROM base AS x\nCOPY $TRIGGERED /\n"},
	{name: "UndefinedVar misspelt", text: "FROM scratch\nENV PATH=$PAHT:/app/bin\n", want: "2 UndefinedVar", warns: "(did you mean $PATH?)"},
	{name: "UndefinedVar of another stage", text: "FROM base AS a\nARG foo=Dockerfile\nFROM a\nCOPY $foo .\n"},
	{name: "UndefinedVar later", text: "FROM base\nCOPY $foo .\nARG foo=bar\nRUN echo $foo\n", want: "2 UndefinedVar"},
	{name: "UndefinedVar of one line", text: "FROM base\nENV a=1 b=$a\n", want: "2 UndefinedVar"},
	{name: "UndefinedVar in RUN", text: "FROM base\nRUN echo $nothing\n"},
	{name: "UndefinedVar with a default", text: "FROM base\nENV a=${nothing:-1}\n", want: "2 UndefinedVar"},
	{name: "UndefinedVar in a here-document", text: "FROM base\nCOPY <<E /f\n$nothing\nE\n", want: "2 UndefinedVar"},
	{name: "UndefinedVar in a quoted here-document", text: "FROM base\nCOPY <<'E' /f\n$nothing\nE\n"},
	{name: "UndefinedVar in a mount", text: "FROM base\nRUN --mount=type=cache,target=$nothing true\n", want: "2 UndefinedVar"},

	{name: "MultipleInstructionsDisallowed", text: "FROM base\nENTRYPOINT [\"echo\", \"Norway\"]\nCMD [\"a\"]\nENTRYPOINT [\"echo\", \"Sweden\"]\nCMD [\"b\"]\nHEALTHCHECK CMD a\nHEALTHCHECK CMD b\n",
		want: "2 MultipleInstructionsDisallowed,3 MultipleInstructionsDisallowed,6 MultipleInstructionsDisallowed", warns: "Multiple ENTRYPOINT instructions"},
	{name: "MultipleInstructionsDisallowed good", text: "FROM base\nHEALTHCHECK --interval=1s CMD [\"curl\"]\nCMD [\"python\"]\nFROM base\nCMD [\"x\"]\n"},

	{name: "LegacyKeyValueFormat", text: "FROM base\nENV DEPS \\\n    curl \\\n    make\nLABEL key value\n", want: "2 LegacyKeyValueFormat,5 LegacyKeyValueFormat", warns: `"ENV key=value" should be used`},
	{name: "LegacyKeyValueFormat good", text: "FROM base\nENV DEPS=\"\\\n    curl \\\n    make\"\nLABEL key=value\n"},
	{name: "LegacyKeyValueFormat in a stage that is not built", text: "FROM scratch AS a\nFROM a AS b\nENV k v\nFROM a AS c\n", target: "c"},
	{name: "LegacyKeyValueFormat without a target", text: "FROM scratch AS a\nFROM a AS b\nENV k v\nFROM a AS c\n", want: "3 LegacyKeyValueFormat"},

	{name: "RedundantTargetPlatform", text: "FROM --platform=$TARGETPLATFORM base AS builder\n", want: "1 RedundantTargetPlatform", warns: "Setting platform to predefined $TARGETPLATFORM in FROM is redundant"},
	{name: "RedundantTargetPlatform braces", text: "FROM --platform=${TARGETPLATFORM} base\n", want: "1 RedundantTargetPlatform"},
	{name: "RedundantTargetPlatform good", text: "FROM base AS builder\n"},

	{name: "SecretsUsedInArgOrEnv", text: "FROM base\nARG AWS_SECRET_ACCESS_KEY\nENV super_Token=1 sunflower=1\n", want: "2 SecretsUsedInArgOrEnv,3 SecretsUsedInArgOrEnv", warns: `sensitive data (ARG "AWS_SECRET_ACCESS_KEY")`},
	{name: "SecretsUsedInArgOrEnv good", text: "FROM base\nARG PUBLIC_KEY\nENV password_file=/x KEYBOARD=de AUTH_VERSION=1\nRUN --mount=type=secret,id=k,env=AWS_KEY true\n"},

	{name: "InvalidDefaultArgInFrom", text: "ARG TAG\nFROM busybox:${TAG}\n", args: map[string]string{"TAG": "latest"}, want: "2 InvalidDefaultArgInFrom", warns: "Default value for ARG busybox:${TAG} results in empty or invalid base image name"},
	{name: "InvalidDefaultArgInFrom empty", text: "ARG IMAGE\nFROM $IMAGE\n", args: map[string]string{"IMAGE": "base"}, want: "2 InvalidDefaultArgInFrom"},
	{name: "InvalidDefaultArgInFrom good", text: "ARG TAG=latest\nFROM busybox:${TAG}\n"},
	{name: "InvalidDefaultArgInFrom may be empty", text: "ARG VARIANT\nFROM busybox:stable${VARIANT}\n"},
	{name: "InvalidDefaultArgInFrom with a default", text: "ARG TAG\nFROM alpine:${TAG:-3.14}\n"},

	{name: "FromPlatformFlagConstDisallowed", text: "FROM --platform=linux/amd64 base AS x\n", want: "1 FromPlatformFlagConstDisallowed", warns: `constant value "linux/amd64"`},
	{name: "FromPlatformFlagConstDisallowed good", text: "FROM --platform=${BUILDPLATFORM} base AS x\n"},
	{name: "FromPlatformFlagConstDisallowed in the name", text: "FROM --platform=linux/amd64 base AS build_amd64\nFROM --platform=linux/arm64 base AS build_arm64\nFROM build_${TARGETARCH} AS build\n"},

	{name: "CopyIgnoredFile", ignore: "*/tmp/*\n", text: "FROM scratch\nCOPY ./a/tmp/helloworld.txt /helloworld.txt\nADD a/tmp/x /\n", want: "2 CopyIgnoredFile,3 CopyIgnoredFile", warns: `Attempting to Copy file "a/tmp/helloworld.txt" that is excluded by .dockerignore`},
	{name: "CopyIgnoredFile good", ignore: "*/tmp/*\n", text: "FROM scratch\nCOPY ./forever/helloworld.txt /helloworld.txt\nADD https://example.com/a/tmp/x /\n"},
	{name: "CopyIgnoredFile from a stage", ignore: "foobar\n", text: "FROM scratch AS a\nFROM a\nCOPY --from=a /foobar foobar /x/\n"},
	{name: "CopyIgnoredFile with exceptions", ignore: "**\n!Dockerfile\n", text: "FROM scratch\nCOPY ./Dockerfile .\nCOPY . .\n"},
	{name: "CopyIgnoredFile all of it", ignore: "*\n", text: "FROM scratch\nCOPY . .\n", want: "2 CopyIgnoredFile"},
	{name: "CopyIgnoredFile dotfiles", ignore: ".*\n", text: "FROM scratch\nCOPY . .\n"},

	{name: "InvalidDefinitionDescription", text: "# check=experimental=InvalidDefinitionDescription\n# a comment\nFROM scratch AS base\n# another\nARG VERSION=1\n",
		want: "3 InvalidDefinitionDescription,5 InvalidDefinitionDescription", warns: "Comment for FROM should follow the format: `# base <description>`"},
	{name: "InvalidDefinitionDescription good", text: "# check=experimental=all\n# base is a stage\nFROM scratch AS base\n# a comment\n\n# VERSION is the version.\nARG VERSION=1\n"},
	{name: "InvalidDefinitionDescription is off", text: "# a comment\nFROM scratch AS base\n"},

	{name: "ExposeProtoCasing", text: "FROM scratch\nEXPOSE 80/TcP\n", want: "2 ExposeProtoCasing", warns: "Defined protocol '80/TcP' in EXPOSE instruction should be lowercase"},
	{name: "ExposeProtoCasing good", text: "FROM scratch\nEXPOSE 80/tcp 53/udp 1-2\n"},
	{name: "ExposeInvalidFormat", text: "FROM scratch\nEXPOSE 127.0.0.1:80:80\nEXPOSE 80:80 [::1]:80:80/tcp\n", want: "2 ExposeInvalidFormat,3 ExposeInvalidFormat,3 ExposeInvalidFormat", warns: "found '127.0.0.1:80:80'"},
	{name: "ExposeInvalidFormat good", text: "FROM scratch\nEXPOSE 80\n"},
	{name: "Expose of variables", text: "FROM scratch\nARG p=\"80/TCP 81\"\nEXPOSE $p\n", want: "3 ExposeProtoCasing"},

	{name: "skip of all", text: "# check=skip=all\nFROM scratch as Base\ncopy a /\n"},
	{name: "skip of some", text: "#check=skip=FromAsCasing,ConsistentInstructionCasing\nFROM scratch as Base\ncopy a /\n", want: "2 StageNameCasing"},
	{name: "skip of one instruction", text: "FROM scratch\n# check=skip=LegacyKeyValueFormat\nENV a b\nENV c d\n# check=skip=all // here only\nARG password\n", want: "4 LegacyKeyValueFormat"},
	{name: "the argument is above the directive", text: "# check=skip=all\nFROM scratch as Base\n", args: map[string]string{"BUILDKIT_DOCKERFILE_CHECK": "skip=FromAsCasing"}, want: "2 StageNameCasing"},
	{name: "in the order of lines", text: "FROM scratch as a\nWORKDIR x\nMAINTAINER m\nCMD x\n", want: "1 FromAsCasing,2 WorkdirRelativePath,3 MaintainerDeprecated,4 JSONArgsRecommended"},
}

// newStore returns an empty store.
func newStore(t testing.TB) *store.Store {
	t.Helper()
	s, err := store.Open(filepath.Join(t.TempDir(), "store"))
	testenv.Check(t, err)
	return s
}

// lintStore returns a store with the base images of lintCases.
func lintStore(t *testing.T) *store.Store {
	t.Helper()
	s := newStore(t)
	for name, c := range map[string]v1.Config{
		"base":    {Env: []string{"PATH=/bin", "PYTHON_VERSION=3"}, OnBuild: []string{"ARG TRIGGERED=1"}},
		"shelled": {Shell: []string{"/bin/bash", "-c"}},
	} {
		img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: goruntime.GOARCH, Config: c, RootFS: v1.RootFS{Type: "layers"}})
		testenv.Check(t, err)
		_, err = s.Put(context.Background(), name, img)
		testenv.Check(t, err)
	}
	return s
}

func TestLint(t *testing.T) {
	s := lintStore(t)
	for _, c := range lintCases {
		t.Run(c.name, func(t *testing.T) {
			o := build.Options{Args: c.args, Target: c.target}
			if c.ignore != "" {
				o.Context = testenv.Files(t, ".dockerignore", c.ignore)
			}
			found, reported, err := checked(t, s, c.text, o)
			if (err != nil) != (c.fails != "") || (err != nil && !strings.Contains(err.Error(), c.fails)) {
				t.Errorf("Check(%q): error %v; want %q", c.text, err, c.fails)
			}
			if got := strings.Join(found, ","); got != c.want {
				t.Errorf("Check(%q) = %q; want %q\n%s", c.text, got, c.want, reported)
			}
			first, _, _ := strings.Cut(reported, "\n")
			if !strings.Contains(first, c.warns) {
				t.Errorf("Check(%q) warns %q; want %q in it", c.text, first, c.warns)
			}
		})
	}
}

// TestLintRules checks that each rule of BuildKit has a case with a warning and a similar
// one without.
func TestLintRules(t *testing.T) {
	for _, rule := range strings.Fields(`StageNameCasing FromAsCasing NoEmptyContinuation ConsistentInstructionCasing DuplicateStageName
		ReservedStageName JSONArgsRecommended MaintainerDeprecated UndefinedArgInFrom WorkdirRelativePath UndefinedVar
		MultipleInstructionsDisallowed LegacyKeyValueFormat RedundantTargetPlatform SecretsUsedInArgOrEnv InvalidDefaultArgInFrom
		FromPlatformFlagConstDisallowed CopyIgnoredFile InvalidDefinitionDescription ExposeProtoCasing ExposeInvalidFormat`) {
		var bad, good bool
		for _, c := range lintCases {
			if strings.HasPrefix(c.name, rule) {
				bad = bad || strings.Contains(c.want, rule)
				good = good || c.want == ""
			}
		}
		if !bad || !good {
			t.Errorf("rule %s lacks a case: bad %v, good %v", rule, bad, good)
		}
	}
}

func TestLintErrors(t *testing.T) {
	s := lintStore(t)
	for _, c := range []struct{ name, text, want, err string }{
		{"an error when asked", "# check=error=true\nFROM scratch\nENV a b\nCMD x\n", "3 LegacyKeyValueFormat,4 JSONArgsRecommended", ":3: JSONArgsRecommended, LegacyKeyValueFormat: warnings are errors with check=error=true"},
		{"none, none", "# check=error=true\nFROM scratch\n", "", ""},
		{"warnings before an error", "FROM scratch as a\nBOOM\n", "1 FromAsCasing", ":2: unknown instruction: BOOM"},
		{"warnings before a missing stage", "FROM scratch as a\nCOPY --from=b x /\nFROM scratch AS b\n", "1 FromAsCasing", ":2: COPY --from=b x /: --from=b: no earlier stage with that name"},
		{"an invalid directive", "# check=jump=yes\nFROM scratch\n", "", `reading # check="jump=yes": invalid check option "jump"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			found, _, err := checked(t, s, c.text, build.Options{})
			if got := strings.Join(found, ","); got != c.want {
				t.Errorf("Check(%q) = %q; want %q", c.text, got, c.want)
			}
			if (err == nil) != (c.err == "") || (err != nil && !strings.Contains(err.Error(), c.err)) {
				t.Errorf("Check(%q): %v; want %q", c.text, err, c.err)
			}
		})
	}
}

// TestLintUnknownBase checks that a missing base image causes no warnings about variables,
// and is reported.
func TestLintUnknownBase(t *testing.T) {
	var reported []string
	n, unknown, err := build.Check(context.Background(), newStore(t), build.Options{Dockerfile: "-", Context: t.TempDir(),
		Stdin: strings.NewReader("FROM python:3\nENV A=$PYTHON_VERSION B=$PATH\n"),
		Host:  build.Host{Progress: func(e build.Event) { reported = append(reported, e.Warning) }}})
	if err != nil || n != 0 || strings.Join(unknown, ",") != "python:3" {
		t.Errorf("Check = %d %q, unknown %q, %v; want no warning and python:3 unknown", n, reported, unknown, err)
	}
}

// FuzzCheck checks any text: the result is warnings, or an error that names the file.
func FuzzCheck(f *testing.F) {
	for _, c := range lintCases {
		f.Add(c.text)
	}
	s, dir := newStore(f), f.TempDir()
	f.Fuzz(func(t *testing.T, text string) {
		_, _, err := build.Check(context.Background(), s, build.Options{Dockerfile: "-", Context: dir, Stdin: strings.NewReader(text), Host: build.Host{Progress: func(e build.Event) {
			if !strings.HasPrefix(e.Warning, "Dockerfile (standard input):") || e.Rule == "" {
				t.Errorf("Check(%q) reports %+v", text, e)
			}
		}}})
		if err != nil && !strings.HasPrefix(err.Error(), "Dockerfile (standard input):") {
			t.Errorf("Check(%q): %v", text, err)
		}
	})
}
