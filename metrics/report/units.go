package report

import (
	"fmt"
	"math"
	"strconv"
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

// format formats a figure for people, with three significant digits and the unit that fits.
func (u unit) format(v float64, currency string) string {
	switch u {
	case inSeconds:
		return formatSeconds(v)
	case inBytes:
		return formatBytes(v)
	case inPercent:
		return formatPercent(v)
	case inMoney:
		return strings.TrimSpace(digits(v) + " " + currency)
	case inEnergy:
		return formatEnergy(v)
	}
	return digits(v)
}

// formatRange formats a value with the range around it: "8.70 GiB (8.60 – 8.81 GiB)". It is
// only the value if the range rounds to it.
func (u unit) formatRange(v, low, high float64, currency string) string {
	middle, a, b := u.format(v, currency), u.format(low, currency), u.format(high, currency)
	if a == middle && b == middle {
		return middle
	}
	number, name, _ := strings.Cut(a, " ")
	if _, other, _ := strings.Cut(b, " "); name == other {
		a = number
	}
	return fmt.Sprintf("%s (%s – %s)", middle, a, b)
}

func formatSeconds(v float64) string {
	const minute, hour, day = 60, 3600, 86400
	switch {
	case v == 0:
		return "0 s"
	case v < 0.001:
		return digits(v*1e6) + " µs"
	case v < 0.9995:
		return digits(v*1000) + " ms"
	case v < minute-0.05:
		return digits(v) + " s"
	case v < 100*hour:
		d := time.Duration(v * float64(time.Second)).Round(time.Second)
		if d < time.Hour {
			return fmt.Sprintf("%dm%02ds", d/time.Minute, d%time.Minute/time.Second)
		}
		d = d.Round(time.Minute)
		return fmt.Sprintf("%dh%02dm", d/time.Hour, d%time.Hour/time.Minute)
	}
	return digits(v/day) + " days"
}

// formatCPUTime formats the sum of processor times.
func formatCPUTime(v float64) string {
	switch {
	case v < 60:
		return digits(v) + " CPU-seconds"
	case v < 3600:
		return digits(v/60) + " CPU-minutes"
	}
	return digits(v/3600) + " CPU-hours"
}

func formatBytes(v float64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	i := 0
	for ; v >= 1023.5 && i < len(units)-1; i++ {
		v /= 1024
	}
	return digits(v) + " " + units[i]
}

// formatEnergy formats kWh.
func formatEnergy(v float64) string {
	switch {
	case v == 0, v >= 1 && v < 1000:
		return digits(v) + " kWh"
	case v >= 1000:
		return digits(v/1000) + " MWh"
	}
	return digits(v*1000) + " Wh"
}

func formatPercent(v float64) string {
	switch v *= 100; {
	case v == 0:
		return "0%"
	case v < 0.1:
		return "<0.1%"
	case v < 9.95:
		return fmt.Sprintf("%.1f%%", v)
	}
	return fmt.Sprintf("%.0f%%", v)
}

// digits formats a number with three significant digits, or an integer with all.
func digits(v float64) string {
	if a := math.Abs(v); a == math.Trunc(a) && a < 1e6 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return significant(v)
}

// smallest is the smallest number that is written with its digits.
const smallest = 1e-6

// significant formats a number with three significant digits, never with an exponent.
func significant(v float64) string {
	if a := math.Abs(v); a > 0 && a < smallest {
		return "<0.000001"
	}
	_, exponent, _ := strings.Cut(strconv.FormatFloat(v, 'e', 2, 64), "e")
	power, _ := strconv.Atoi(exponent)
	return strconv.FormatFloat(v, 'f', max(0, 2-power), 64)
}

// plural formats a number with its noun.
func plural(n int, one, many string) string {
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
func plain(s string) string { return printable(s, longText) }

// sentence is plain for longer text.
func sentence(s string) string { return printable(s, longSentence) }

// printable returns text on one line, of at most most characters, without control characters.
func printable(s string, most int) string {
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
