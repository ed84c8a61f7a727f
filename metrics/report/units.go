package report

import (
	"fmt"
	"math"
	"strings"
	"time"
	"unicode"
)

// A unit is the unit of a figure.
type unit int

const (
	inSeconds unit = iota
	inBytes
	inPercent // as a fraction of 1
	inMoney
	inEnergy // kWh
	inNumber
)

// say formats a figure for people.
func (u unit) say(v float64, currency string) string {
	switch u {
	case inSeconds:
		return saySeconds(v)
	case inBytes:
		return sayBytes(v)
	case inPercent:
		return sayPercent(v)
	case inMoney:
		return strings.TrimSpace(digits(v) + " " + currency)
	case inNumber:
		return digits(v)
	}
	return digits(v) + " kWh"
}

func saySeconds(v float64) string {
	switch {
	case v == 0:
		return "0 s"
	case v < 0.1:
		return digits(v*1000) + " ms"
	case v < 60:
		return digits(v) + " s"
	case v < 100*3600:
		d := time.Duration(v * float64(time.Second)).Round(time.Second)
		if d < time.Hour {
			return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
		}
		d = d.Round(time.Minute)
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return digits(v/86400) + " days"
}

func sayBytes(v float64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	i := 0
	for ; v >= 1000 && i < len(units)-1; i++ {
		v /= 1024
	}
	return digits(v) + " " + units[i]
}

func sayPercent(v float64) string {
	switch v *= 100; {
	case v == 0:
		return "0%"
	case v < 0.1:
		return "<0.1%"
	case v < 10:
		return fmt.Sprintf("%.1f%%", v)
	}
	return fmt.Sprintf("%.0f%%", v)
}

// digits formats three significant digits.
func digits(v float64) string {
	switch a := math.Abs(v); {
	case a == math.Trunc(a) && a < 1e6:
		return fmt.Sprintf("%.0f", v)
	case a >= 99.95:
		return fmt.Sprintf("%.0f", v)
	case a >= 9.995:
		return fmt.Sprintf("%.1f", v)
	case a >= 0.995:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

// counted formats a number with its noun.
func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprint(n) + " " + many
}

// Maximum lengths of displayed text, in characters: of foreign text, and of our own text
// that contains foreign text.
const (
	longText     = 160
	longSentence = 2000
)

// plain returns foreign text on one line, truncated and without characters that move the
// cursor or change the text direction.
func plain(s string) string { return shown(s, longText) }

// sentence is plain for longer text.
func sentence(s string) string { return shown(s, longSentence) }

func shown(s string, most int) string {
	s = s[:min(len(s), 16*longSentence)]
	out := make([]rune, 0, min(len(s), most))
	for _, r := range s {
		switch {
		case len(out) == most:
			return string(append(out[:most-1], '…'))
		case r == '\t' || r == '\n' || r == '\r':
			out = append(out, ' ')
		case unicode.IsControl(r), r >= 0x202a && r <= 0x202e, r >= 0x2066 && r <= 0x2069, r == 0x200e, r == 0x200f, r == 0x2028, r == 0x2029:
			out = append(out, '\ufffd')
		default:
			out = append(out, r)
		}
	}
	return string(out)
}
