/** The header that clients of Anthropic's API send with every request (https://platform.claude.com/docs/en/api/versioning). */
export const versionHeader = 'anthropic-version';
