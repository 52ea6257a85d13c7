const { pathname } = new URL(import.meta.url);

/** The path of the server at its origin: empty, or for example `/llm` behind a proxy that serves it below that path. */
export const serverPath = pathname.slice(0, Math.max(0, pathname.lastIndexOf('/console/')));

/** The address of the server, for programs. */
export const serverUrl = (): string => location.origin + serverPath;
