package external

import "strings"

// languageNames has the name and then the code of each language of Whisper. OpenAI's API and
// whisper.cpp's server return the names.
var languageNames = strings.Fields(`
english en chinese zh german de spanish es russian ru korean ko french fr japanese ja portuguese pt turkish tr
polish pl catalan ca dutch nl arabic ar swedish sv italian it indonesian id hindi hi finnish fi vietnamese vi
hebrew he ukrainian uk greek el malay ms czech cs romanian ro danish da hungarian hu tamil ta norwegian no
thai th urdu ur croatian hr bulgarian bg lithuanian lt latin la maori mi malayalam ml welsh cy slovak sk
telugu te persian fa latvian lv bengali bn serbian sr azerbaijani az slovenian sl kannada kn estonian et
macedonian mk breton br basque eu icelandic is armenian hy nepali ne mongolian mn bosnian bs kazakh kk
albanian sq swahili sw galician gl marathi mr punjabi pa sinhala si khmer km shona sn yoruba yo somali so
afrikaans af occitan oc georgian ka belarusian be tajik tg sindhi sd gujarati gu amharic am yiddish yi lao lo
uzbek uz faroese fo pashto ps turkmen tk nynorsk nn maltese mt sanskrit sa luxembourgish lb myanmar my tibetan
bo tagalog tl malagasy mg assamese as tatar tt hawaiian haw lingala ln hausa ha bashkir ba javanese jw
sundanese su cantonese yue`)

// languageCode returns the code of a language, which a server returned by its name or its code.
func languageCode(language string) string {
	language = strings.ToLower(strings.TrimSpace(language))
	if language == "haitian creole" {
		return "ht"
	}
	for i := 0; i+1 < len(languageNames); i += 2 {
		if languageNames[i] == language {
			return languageNames[i+1]
		}
	}
	return language
}
