// Formats of credentials, as their issuers publish them: the issuers are those that gitleaks' default rules know. Each
// pattern is RE2-compatible apart from its look-around and runs in linear time: a prefix is followed by one class of
// characters, and if more must follow, a match cannot begin again within that class.

/** Prefixes that are followed by at least the given number of letters, digits, `_` and `-`. */
const prefixed: readonly (readonly [characters: number, prefixes: string])[] = [
  // Language models: OpenAI, Anthropic, Stripe (sk, rk, pk), Groq, xAI, Perplexity, Hugging Face, Replicate, Sluice.
  [8, '(?:sk|rk|pk|gsk|xai|glw|slk)[-_]|pplx-|whsec_'],
  [20, 'hf_|api_org_|r8_'],
  // Code hosts and registries: GitHub, GitLab, Bitbucket and Jira, npm, PyPI, RubyGems, NuGet, Clojars, Artifactory.
  [20, 'gh[pousr]_|github_pat_|gl(?:pat|ptt|rt|dt|cbt|soat|imt|ft|agent|oas|ffct)-|GR1348941|ATATT3|ATCTT3|ATBB'],
  [20, 'npm_|pypi-AgE|rubygems_|oy2|CLOJARS_|AKCp|cmVmd|sgp_|ccpat_|ico-|tfp_|rdme_|sntry[su]_|dnkey-|pul-'],
  // Clouds and infrastructure: Azure, Alibaba, DigitalOcean, Heroku, Fly, Vault, Doppler, Databricks, Grafana, and others.
  [
    16,
    'LTAI|do[opr]_v1_|HRKU-|fo1_|fm[12][ar]?_|hv[sbr]\\.|dp\\.(?:pt|st|ct|sa|scim|audit)\\.|dapi|gls[ap]_|glc_|eyJrIjoi',
  ],
  [
    16,
    'pscale_(?:tkn|pw|oauth)_|pnu_|NR(?:AK|II|RA|JS|BR)-|tk-us-|sm_aat_|sha256~|API-[A-Z0-9]{10}|4b1d[A-Za-z0-9]{20}|p8e-',
  ],
  // Messages and mail: Slack, SendGrid, Mailgun, Brevo, Twilio, Telegram.
  [10, 'xox[abeoprs]-|xapp-\\d-|SG\\.|xkeysib-|xsmtpsib-'],
  [32, 'SK|key-|pubkey-'],
  // Work: Linear, Notion, Airtable, Postman, Atlassian, Shopify, Square, EasyPost, Shippo, Duffel, Frame.io, 1Password.
  [
    16,
    'lin_(?:api|oauth)_|ntn_|secret_|pat[A-Za-z0-9]{14}\\.|PMAK-|shp(?:at|ca|pa|ss)_|sq0(?:atp|csp|idp)-|EAAA[A-Za-z0-9]',
  ],
  [
    16,
    'EZ[AT]K|shippo_(?:live|test)_|duffel_(?:live|test)_|fio-u-|ops_eyJ|FLWSECK(?:_TEST)?-|AGE-SECRET-KEY-1|A3-[A-Z0-9]{6}-',
  ],
];

/** A credential never directly follows one of the characters that it consists of, so `task-` does not count as `sk-`. */
const start = '(?<![A-Za-z0-9])';

/** Text that a separate group matches before the credential remains. */
export const credentialShapes: readonly RegExp[] = [
  new RegExp(
    `${start}(?:${prefixed.map(([characters, prefixes]) => `(?:${prefixes})[A-Za-z0-9_-]{${characters},}`).join('|')})(?:\\.[A-Za-z0-9_-]{8,})*`,
    'g',
  ),
  // AWS and Google.
  /(?<![A-Za-z0-9])(?:(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{12,}|A3T[A-Z0-9]{17}|AIza[0-9A-Za-z_-]{20,}|GOCSPX-[\w-]{20,}|ya29\.[\w-]{20,})/g,
  // Azure: client secrets, keys of storage accounts and shared access signatures.
  /(?<![\w~.-])[\w~.-]{3}\dQ~[\w~.-]{31,34}/g,
  /((?:AccountKey|SharedAccessKey|sig)=)[A-Za-z0-9+/%]{32,}=*/g,
  /(?<![A-Za-z0-9])(?:[0-9a-f]{32}-us\d{1,2}|\d{8,10}:AA[\w-]{32,})(?![A-Za-z0-9])/g,
  /(?<![A-Za-z0-9])v1\.0-[a-f0-9]{24}-[a-f0-9]{100,}/g,
  // Signed tokens, and private keys with or without their end.
  /(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?/g,
  /-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:[\w\s+/=\\:,.-]{0,16000}?-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|[\w\s+/=\\:,.-]{0,16000})/g,
  // Headers and URLs.
  /\b(?:Bearer|Basic)\s+[A-Za-z0-9._~+/=-]{8,}/gi,
  /([?&](?:api[_-]?key|key|token|secret|access_token|client_secret|signature)=)[^&\s"']+/gi,
  /(:\/\/[^\s/:@]*:)[^\s/@]+(?=@)/g,
  // Webhooks, whose secret is in their path.
  /(hooks\.slack\.com\/(?:services|workflows|triggers)\/)[\w+/-]+/g,
  /(discord(?:app)?\.com\/api\/(?:v\d+\/)?webhooks\/)\d+\/[\w-]+/g,
  /(\.(?:webhook\.office|logic\.azure)\.com\/)[^\s"'?]+/g,
];

/** `api_key = value`, in any spelling; the value is a credential if it looks random. */
export const assignment =
  /(?<![a-z])((?:api|access|auth|private|secret|encryption|signing|account|client)[ _-]?(?:key|token|secret)|apikey|passw(?:or)?d|passphrase|secret|token|credentials?)((?:[_-]\w{0,20})?["'`]?\s{0,3}(?:=>|:=|[=:])\s{0,3}["'`]?)([\w+/.~=-]{10,200})/gi;

// The end of a name, without separators: `max_tokens` counts tokens, and `prompt_cache_key` is not a key.
const credentialName =
  /(?:apikey|accesskey|secretkey|privatekey|secret|password|passwd|passphrase|authorization|token|bearer|credentials?|cookie|signature)$/;

/** Whether the name of a member or parameter is that of a credential, in any spelling (`apiKey`, `x-api-key`). */
export const hasCredentialName = (name: string): boolean =>
  credentialName.test(name.toLowerCase().replaceAll(/[-_.]/g, ''));

/** Whether letters and digits are as mixed as in a random text: about 3.5 bits for each character. */
export function looksRandom(value: string): boolean {
  if (value.length < 10 || !/\d/.test(value) || !/[a-z]/i.test(value)) return false;
  const counts = new Map<string, number>();
  for (const character of value) counts.set(character, (counts.get(character) ?? 0) + 1);
  let bits = 0;
  for (const count of counts.values()) bits -= (count / value.length) * Math.log2(count / value.length);
  // A text of ten different characters has 3.3.
  return bits >= Math.min(3.5, Math.log2(value.length) - 0.5);
}
