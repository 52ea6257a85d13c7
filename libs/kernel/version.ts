import packageFile from '../../package.json' with { type: 'json' };

/** The release, as package.json has it. Everything that names a version takes it from here. */
export const version: string = packageFile.version;
